"""The theory laid over networks: discrete layers, random kernels, and the bridge to a real model."""
