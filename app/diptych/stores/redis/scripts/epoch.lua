#!lua flags=allow-oom
-- Gives the epoch, the name of this store's life; sets it if the store is empty. It is a write on
-- purpose: a server that takes no writes refuses it.
-- ARGV: prefix, a new epoch
local epoch = redis.call('GET', PREFIX .. ':epoch')
if not epoch then
  epoch = ARGV[2]
  redis.call('SET', PREFIX .. ':epoch', epoch)
end
return epoch
