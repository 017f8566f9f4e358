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

-- Forgets a session and its runs.
-- ARGV: prefix, session
local session = ARGV[2]
if redis.call('EXISTS', key('session', session)) == 0 then
  return 'unknown'
end
if redis.call('EXISTS', key('queue', session)) == 1 then
  return 'busy'
end
for _, run in ipairs(redis.call('ZRANGE', key('runs', session), 0, -1)) do
  redis.call('UNLINK', key('log', run), key('run', run))
end
for _, kind in ipairs({ 'session', 'runs', 'said', 'fence', 'lease' }) do
  redis.call('UNLINK', key(kind, session))
end
redis.call('ZREM', PREFIX .. ':sessions', session)
redis.call('SREM', PREFIX .. ':active', session)
return 'deleted'
