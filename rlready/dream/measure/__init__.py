"""How a dream made from logs is measured.

open_loop     recorded histories, one step at a time: what would the dream have said?
curve         the same over 0, 1, 4, 16, 64 ... all recordings, and a verdict in words
closed_loop   the dream's own episodes, replayed in the real environment
quality       what needs no real environment: contradictions, inventions, can it be told from the recordings?

`dream.gate` decides whether training may start, `dream.report` puts everything into one report.
"""
