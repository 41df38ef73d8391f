"""`normlab lengthgen`: does it generalize beyond the training length?"""
