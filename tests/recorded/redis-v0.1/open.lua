#!lua
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

-- Begins a run, at the end of its session's queue, and claims the session if nobody holds it.
-- ARGV: prefix, epoch, run, session, token, created, record, shown, server, lease ms,
--       longest queue, once key, once digest
local epoch, run, session, token, created = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local once = ARGV[12] ~= '' and key('once', ARGV[12])

local function opened(id, is_new)
  local lease = is_new == 1 and redis.call('GET', key('lease', session)) == token
  return { 'ok', id, is_new, lease and 1 or 0, unpack(meta_of(id)) }
end

local current = redis.call('GET', PREFIX .. ':epoch')
if current ~= epoch then
  return { 'epoch', current or '' }
end
if redis.call('EXISTS', key('run', run)) == 1 then
  return opened(run, 1)
end
if once then
  local first = redis.call('HMGET', once, 'run', 'digest')
  if first[1] and redis.call('EXISTS', key('run', first[1])) == 1 then
    if first[2] ~= ARGV[13] then
      return { 'other' }
    end
    return opened(first[1], 0)
  end
end
if redis.call('LLEN', key('queue', session)) >= tonumber(ARGV[11]) then
  return { 'full' }
end

local order = redis.call('INCR', PREFIX .. ':order')
redis.call('XADD', key('log', run), '1-0', 'r', ARGV[7])
redis.call(
  'HSET', key('run', run),
  'session', session, 'created', created, 'status', 'queued', 'seq', 1, 'updated', created
)
redis.call('RPUSH', key('queue', session), run)
redis.call('ZADD', key('runs', session), order, run)
redis.call('HSETNX', key('session', session), 'created', created)
redis.call('HSET', key('session', session), 'updated', created)
redis.call('HINCRBY', key('session', session), 'events', ARGV[8])
redis.call('ZADD', PREFIX .. ':sessions', now_ms(), session)
redis.call('SADD', PREFIX .. ':active', session)
for _, kind in ipairs({ 'session', 'runs', 'said', 'fence' }) do
  redis.call('PERSIST', key(kind, session)) -- while a run is unfinished nothing expires
end
if once then
  redis.call('HSET', once, 'run', run, 'digest', ARGV[13])
  redis.call('EXPIRE', once, 86400)
end
if redis.call('SET', key('lease', session), token, 'NX', 'PX', ARGV[10]) then
  redis.call('SET', key('fence', session), token)
  take_up(session, ARGV[9])
end
return opened(run, 1)
