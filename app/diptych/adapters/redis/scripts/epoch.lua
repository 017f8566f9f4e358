#!lua flags=allow-oom
-- The name of this store's life; the first to ask gives it. Counts as a write on purpose: a server
-- that takes no writes refuses it.
-- ARGV: prefix, a new name
local epoch = redis.call('GET', PREFIX .. ':epoch')
if not epoch then
  epoch = ARGV[2]
  redis.call('SET', PREFIX .. ':epoch', epoch)
end
return epoch
