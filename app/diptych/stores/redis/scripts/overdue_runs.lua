#!lua flags=allow-oom
-- Gives queued runs whose deadline has passed, and each of them again later, until it has begun or
-- ended: whoever was to be told may not have heard it.
-- ARGV: prefix, how many, ms after which one is given again
local now, found = now_ms(), {}
for _, run in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, ARGV[2])) do
  if redis.call('HGET', key('run', run), 'status') == 'queued' then
    redis.call('ZADD', DUE, now + ARGV[3], run)
    found[#found + 1] = run
  else
    redis.call('ZREM', DUE, run)
  end
end
return found
