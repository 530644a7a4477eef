"""Container images: those of the product, built from Dockerfiles, and small ones packed here without any engine."""
