"""DreamGym (arXiv 2511.03773): learn a simulator from an agent's logs, train the agent inside it, carry it back."""
