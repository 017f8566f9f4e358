#!lua flags=allow-oom
-- Removes from the lists the expired among some runs; gives the order up to which it looked, or ''.
-- ARGV: prefix, after (an order or ''), how many
return remove_expired_runs(ARGV[2], tonumber(ARGV[3]))
