"""Put a scheme into a Hugging Face model, take it out again, take layers out; the checkpoint stays usable."""
