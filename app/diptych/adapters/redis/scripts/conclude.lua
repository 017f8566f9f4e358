#!lua flags=allow-oom
-- Takes a run that has ended out of the queue, and names the next.
-- ARGV: prefix, session, token, server, lease ms, run, said, retention ms, blob ms
local session, run = ARGV[2], ARGV[6]
local retention, blob_ms = tonumber(ARGV[8]), ARGV[9]
local GONE_MS = 86400000 -- for so long an expired run is known to have been

local function expire(id, finished)
  local ms = retention
  local condition = finished and 'NX' or 'XX' -- XX: one that is not finished has no end set
  redis.call('PEXPIRE', key('log', id), ms, condition)
  redis.call('PEXPIRE', key('run', id), ms + GONE_MS, condition)
  local blob = redis.call('HGET', key('run', id), 'blob')
  if blob then
    redis.call('PEXPIRE', key('blob', blob), blob_ms)
  end
end

-- All that a session holds expires together, after its last run. To set that anew for each run
-- at each end would cost the more the longer the session: a tenth of the retention is near enough.
local function refresh()
  local now = now_ms()
  local refreshed = tonumber(redis.call('HGET', key('session', session), 'refreshed') or 0)
  if now - refreshed < retention / 11 then
    return
  end
  redis.call('HSET', key('session', session), 'refreshed', now)
  for _, id in ipairs(redis.call('ZRANGE', key('runs', session), 0, -1)) do
    expire(id, false)
  end
end

local wrong = refusal(session, ARGV[3])
if wrong then
  return { wrong }
end
if redis.call('LPOS', key('queue', session), run) then
  local meta = redis.call('HMGET', key('run', run), 'status', 'seq')
  if meta[1] == 'queued' or meta[1] == 'running' then
    return { 'tail', tonumber(meta[2]) } -- a former master had its end on record: it must go back
  end
  redis.call('LREM', key('queue', session), 1, run)
  redis.call('UNLINK', key('asked', run))
  if ARGV[7] ~= '' then
    redis.call('RPUSH', key('said', session), ARGV[7])
  end
  expire(run, true)
  refresh()
  redis.call('ZADD', PREFIX .. ':sessions', now_ms(), session)
end
local following = next_run(session, ARGV[3], ARGV[4], ARGV[5])
if not following then
  for _, kind in ipairs({ 'session', 'runs', 'said', 'fence' }) do
    redis.call('PEXPIRE', key(kind, session), retention)
  end
end
return { 'ok', following }
