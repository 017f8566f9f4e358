"""What both sides of a connection share: formats on the wire, and when to try again."""
