#!lua flags=allow-oom
-- Takes a run that has ended out of the queue, adds its messages to the conversation, and gives the
-- next run.
-- ARGV: prefix, session, token, server, lease ms, run, messages or '', retention ms, blob ms
local session, run = ARGV[2], ARGV[6]
local retention, blob_ms = tonumber(ARGV[8]), ARGV[9]
local KNOWN_MS = 86400000 -- for which an expired run is known to have existed

-- Sets when a run expires: 'NX' for the first time, 'XX' to put it off. An unfinished run has no
-- such time, and 'XX' gives it none.
local function expire(id, condition)
  redis.call('PEXPIRE', key('log', id), retention, condition)
  redis.call('PEXPIRE', key('run', id), retention + KNOWN_MS, condition)
  local blob = redis.call('HGET', key('run', id), 'blob')
  if blob then
    redis.call('PEXPIRE', key('blob', blob), blob_ms)
  end
end

-- All runs of a session expire together, after its last one. To put that off at every end would
-- cost more the longer the session is, so it is done once per tenth of the retention.
local function put_off_expiry()
  local now = now_ms()
  local refreshed = tonumber(redis.call('HGET', key('session', session), 'refreshed') or 0)
  if now - refreshed < retention / 11 then
    return
  end
  redis.call('HSET', key('session', session), 'refreshed', now)
  for _, id in ipairs(redis.call('ZRANGE', key('runs', session), 0, -1)) do
    expire(id, 'XX')
  end
end

local refused = refusal(session, ARGV[3])
if refused then
  return { refused }
end
if redis.call('LPOS', key('queue', session), run) then
  local known = redis.call('HMGET', key('run', run), 'status', 'seq')
  if known[1] == 'queued' or known[1] == 'running' or known[1] == 'input-required' then
    return { 'tail', tonumber(known[2]) } -- the run's end was lost: its owner must add it again
  end
  redis.call('LREM', key('queue', session), 1, run)
  redis.call('UNLINK', key('asked', run))
  if ARGV[7] ~= '' then
    redis.call('RPUSH', key('said', session), ARGV[7])
  end
  add_ended(session, run)
  expire(run, 'NX')
  put_off_expiry()
  redis.call('ZADD', SESSIONS, now_ms(), session)
end
local following = next_run(session, ARGV[3], ARGV[4], ARGV[5])
if not following then
  count(session)
  for _, kind in ipairs({ 'session', 'runs', 'said', 'fence' }) do
    redis.call('PEXPIRE', key(kind, session), retention)
  end
end
return { 'ok', following }
