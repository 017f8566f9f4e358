#!lua flags=allow-oom
-- Deletes a session and its runs, unless a run is unfinished, or its owner is to count it: 'ending'.
-- ARGV: prefix, session
local session = ARGV[2]
if redis.call('EXISTS', key('session', session)) == 0 then
  return 'unknown'
end
if redis.call('EXISTS', key('queue', session)) == 1 then
  return is_busy(session) and 'busy' or 'ending'
end
for _, run in ipairs(redis.call('ZRANGE', key('runs', session), 0, -1)) do
  redis.call('UNLINK', key('log', run), key('run', run))
  remove_run(run)
end
for _, kind in ipairs({ 'session', 'runs', 'said', 'fence', 'lease' }) do
  redis.call('UNLINK', key(kind, session))
end
redis.call('ZREM', SESSIONS, session)
redis.call('SREM', ACTIVE, session)
uncount(session)
return 'deleted'
