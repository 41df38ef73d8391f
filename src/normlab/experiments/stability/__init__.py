"""`normlab stability`: where is training stable?"""
