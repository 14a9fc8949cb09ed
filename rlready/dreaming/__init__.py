"""Dreams in a run: of a world that brings its own words (`world`), and of any agent's logs (`fit`, `train`)."""

from rlready.dreaming.world import Dream, DreamCollector, DreamOptions

__all__ = ["Dream", "DreamCollector", "DreamOptions"]
