#!lua flags=allow-oom
-- Stands before every script. ARGV[1] is the prefix of all keys; what a script does is undone by
-- nobody, so each must be right when it is sent a second time after a reply that was lost.
local PREFIX = ARGV[1]

local function key(kind, id)
  return PREFIX .. ':' .. kind .. ':' .. id
end

-- What is kept of a run, in the order of `part.META`.
local function meta_of(run)
  return redis.call(
    'HMGET', key('run', run), 'session', 'created', 'status', 'seq', 'updated', 'server', 'lost'
  )
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Why a token may not write: 'lost' if the session is not there at all, 'stale' if it has another
-- owner. The fence counts, not the lease: it is there when the lease has run out.
local function refusal(session, token)
  local fence = redis.call('GET', key('fence', session))
  if not fence then
    return 'lost'
  end
  return fence ~= token and 'stale' or nil
end

-- The run whose turn it is, now driven on this server. When its owner was on another server,
-- records may be missing that an owner took for written: `lost` holds the seq that is left.
local function take_up(session, server)
  local run = redis.call('LINDEX', key('queue', session), 0)
  if not run then
    return false
  end
  local known = redis.call('HMGET', key('run', run), 'server', 'seq')
  if known[1] ~= server then
    redis.call('HSET', key('run', run), 'server', server)
    if known[1] then
      redis.call('HSET', key('run', run), 'lost', known[2] or 0)
    end
  end
  return run
end

local function give_back(session, token)
  if redis.call('GET', key('lease', session)) == token then
    redis.call('DEL', key('lease', session))
  end
end

-- What `head` gives: the next run, with the lease held on to; or false, with the lease given back.
local function next_run(session, token, server, lease_ms)
  local run = take_up(session, server)
  if run then
    redis.call('SET', key('lease', session), token, 'PX', lease_ms)
  else
    give_back(session, token)
    redis.call('SREM', PREFIX .. ':active', session)
  end
  return run
end

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
