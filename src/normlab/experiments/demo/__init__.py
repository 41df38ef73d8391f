"""`normlab demo`: the phenomenon in a few minutes. All schemes before training, three while they train, one with a fault."""
