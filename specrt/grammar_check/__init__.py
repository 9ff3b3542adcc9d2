"""What a schema becomes: coverage of a file of schemas, and one schema explained."""
