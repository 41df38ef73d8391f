"""`normlab compare`: which scheme should I use?"""
