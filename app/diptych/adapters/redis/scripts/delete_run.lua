#!lua flags=allow-oom
-- Deletes a run that has ended, and what it said, from a session; the session with its last run.
-- ARGV: prefix, session, run, how many of its events are shown
local session, run = ARGV[2], ARGV[3]
if redis.call('EXISTS', key('run', run)) == 0 then
  return 'unknown'
end
local status = redis.call('HGET', key('run', run), 'status')
if status == 'queued' or status == 'running' or status == 'input-required' then
  return 'busy'
end
if redis.call('LPOS', key('queue', session), run) then
  return 'ending'
end
for _, row in ipairs(redis.call('LRANGE', key('said', session), 0, -1)) do
  if row:sub(1, #run + 1) == run .. ' ' then
    redis.call('LREM', key('said', session), 1, row)
  end
end
redis.call('UNLINK', key('log', run), key('run', run))
redis.call('ZREM', key('runs', session), run)
remove_run(run)
redis.call('HINCRBY', key('session', session), 'events', 0 - tonumber(ARGV[4]))
if redis.call('EXISTS', key('runs', session)) == 1 then
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
