#!lua flags=allow-oom
-- Deletes a session and its runs, or one of them with what it said, and the session with its last
-- run; unless a run is unfinished, or its owner is to count it: 'ending'.
-- ARGV: prefix, session; of one run: its id, and how many of its events are shown
local session, run = ARGV[2], ARGV[3]
if redis.call('EXISTS', run and key('run', run) or key('session', session)) == 0 then
  return 'unknown'
end
local queue = key('queue', session)
if run and redis.call('LPOS', queue, run) or not run and redis.call('EXISTS', queue) == 1 then
  return is_busy(session) and 'busy' or 'ending'
end
for _, each in ipairs(run and { run } or redis.call('ZRANGE', key('runs', session), 0, -1)) do
  redis.call('UNLINK', key('log', each), key('run', each))
  redis.call('ZREM', key('runs', session), each)
  remove_run(each)
end
if redis.call('EXISTS', key('runs', session)) == 1 then
  for _, row in ipairs(redis.call('LRANGE', key('said', session), 0, -1)) do
    if row:sub(1, #run + 1) == run .. ' ' then
      redis.call('LREM', key('said', session), 1, row)
    end
  end
  redis.call('HINCRBY', key('session', session), 'events', 0 - tonumber(ARGV[4]))
  if redis.call('HEXISTS', COUNTS, session) == 1 then
    count(session)
  end
  return 'deleted'
end
for _, kind in ipairs({ 'session', 'said', 'fence', 'lease' }) do
  redis.call('UNLINK', key(kind, session))
end
redis.call('ZREM', SESSIONS, session)
redis.call('SREM', ACTIVE, session)
uncount(session)
return 'deleted'
