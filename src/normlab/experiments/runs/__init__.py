"""One run: what it is (`config`), how it is trained (`trainer`, `stack`, `distributed`), what it leaves (`folder`)."""
