"""The documentation site, put together from the code and its data: `make docs`."""
