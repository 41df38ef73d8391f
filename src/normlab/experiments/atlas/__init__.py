"""`normlab atlas`: schemes at initialisation, measured beside their laws."""
