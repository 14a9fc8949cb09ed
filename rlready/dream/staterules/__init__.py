"""What the typed state of a dream is made of: arithmetic, documents, reads and writes, and the proof of each rule."""
