"""specrt bench: replay agent conversations, compare, check equality."""
