#!lua flags=allow-oom
-- Does once what runs need, on keys of its own, and leaves nothing: what the server refuses, or
-- cannot do over several keys, is known before a run fails.
-- ARGV: prefix
local h, l, s = key('probe', 'hash'), key('probe', 'list'), key('probe', 'set')
local z, x, t = key('probe', 'sorted'), key('probe', 'stream'), key('probe', 'text')
for _, command in ipairs({
  { 'UNLINK', h, l, s, z, x, t }, { 'TIME' }, -- a probe before may have failed halfway
  { 'HSET', h, 'a', 1 }, { 'HSETNX', h, 'a', 1 }, { 'HINCRBY', h, 'a', 1 }, { 'HGET', h, 'a' },
  { 'HMGET', h, 'a' }, { 'HEXISTS', h, 'a' }, { 'HDEL', h, 'a' },
  { 'RPUSH', l, 'a' }, { 'LINDEX', l, 0 }, { 'LLEN', l }, { 'LPOS', l, 'a' }, { 'LRANGE', l, 0, -1 },
  { 'LREM', l, 1, 'a' }, { 'SADD', s, 'a' }, { 'SMEMBERS', s },
  { 'SRANDMEMBER', s }, { 'SREM', s, 'a' }, { 'ZADD', z, 1, 'a' }, { 'ZCARD', z },
  { 'ZCOUNT', z, 0, 1 }, { 'ZRANGE', z, 0, -1 }, { 'ZRANGEBYSCORE', z, 0, 1 }, { 'ZSCORE', z, 'a' },
  { 'ZREM', z, 'a' }, { 'XADD', x, '1-1', 'r', 'a' }, { 'XRANGE', x, '-', '+' }, { 'XDEL', x, '1-1' },
  { 'XSETID', x, '2-1' }, { 'MEMORY', 'USAGE', x }, { 'SET', t, '1', 'PX', 1000 }, { 'GET', t },
  { 'INCR', t }, { 'EXISTS', t }, { 'EXPIRE', t, 1 }, { 'PEXPIRE', t, 1000 }, { 'PERSIST', t },
  { 'DEL', t }, { 'UNLINK', h, l, s, z, x }, { 'PUBLISH', key('probe', 'channel'), '' },
}) do
  redis.call(unpack(command))
end
return 1
