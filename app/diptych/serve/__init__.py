"""The process: agents put together, served on sockets, and ended cleanly by signals."""
