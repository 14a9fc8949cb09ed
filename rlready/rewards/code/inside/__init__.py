"""What runs inside the sandbox, beside the program that is judged: standard library alone, no import of rlready.

These files are copied into the sandbox, where they are plain modules of one folder. They hold no expected output and
take no decision: what a program printed is compared outside.
"""
