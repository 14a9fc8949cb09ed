"""Magistral (arXiv 2506.10910), small."""
