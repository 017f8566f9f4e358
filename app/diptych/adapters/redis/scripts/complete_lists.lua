#!lua flags=allow-oom
-- Adds sessions and their runs to the lists, if they are not there; without sessions, clears the
-- counts first.
-- ARGV: prefix, session …
if #ARGV == 1 then
  redis.call('UNLINK', COUNTS)
  redis.call('HSET', LISTS, 'events', 0)
end
for i = 2, #ARGV do
  local session = ARGV[i]
  local runs = redis.call('ZRANGE', key('runs', session), 0, -1, 'WITHSCORES')
  for j = 1, #runs, 2 do
    redis.call('ZADD', INDEX, runs[j + 1], runs[j])
    local _, status = updated_ms(runs[j])
    local is_ended = status
      and status ~= 'queued'
      and status ~= 'running'
      and status ~= 'input-required'
    if is_ended and not redis.call('LPOS', key('queue', session), runs[j]) then
      add_ended(session, runs[j])
    end
  end
  if redis.call('SISMEMBER', ACTIVE, session) == 0 then
    count(session)
  end
end
