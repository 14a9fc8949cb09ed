"""Agnostics: programs in any language, judged by what they print."""
