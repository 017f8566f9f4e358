"""Where runs and sessions are stored: in memory or in Redis, behind one port."""
