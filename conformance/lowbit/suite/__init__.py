"""What `pytest conformance/` runs: one node per property × scheme × implementation, vectorised inside."""
