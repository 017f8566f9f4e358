-- Put before every script. ARGV[1] is the prefix of all keys. A script may be executed a second
-- time if its reply was lost, so each must have the same effect then.
local PREFIX = ARGV[1]
local DUE = PREFIX .. ':due' -- when the deadline of runs is over that may wait for their turn

local function key(kind, id)
  return PREFIX .. ':' .. kind .. ':' .. id
end

-- The fields of a run that an entry needs, in the order of `client.RUN_FIELDS`.
local function run_fields(run)
  return redis.call(
    'HMGET', key('run', run), 'session', 'created', 'status', 'seq', 'updated', 'server', 'lost'
  )
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Why a token may not write: 'lost' if the session does not exist, 'stale' if it has another owner.
-- The fence decides, not the lease: it still exists when the lease has expired.
local function refusal(session, token)
  local fence = redis.call('GET', key('fence', session))
  if not fence then
    return 'lost'
  end
  return fence ~= token and 'stale' or nil
end

-- Gives the first run of the queue, and notes that it is driven on this server. If it was driven on
-- another one, records that an owner took for written may be missing: `lost` is the seq that is
-- left.
local function first_run(session, server)
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

-- Whether the last owner of a session has gone without releasing it: it died, or was cut off.
local function has_died(session)
  local fence = redis.call('GET', key('fence', session))
  return fence and string.sub(fence, 1, 1) ~= '-' and redis.call('EXISTS', key('lease', session)) == 0
end

-- Counts with the first run of the queue that an owner has died during its turn.
local function note_death(session)
  local run = has_died(session) and redis.call('LINDEX', key('queue', session), 0)
  if run then
    redis.call('HINCRBY', key('run', run), 'deaths', 1)
  end
end

local function release(session, token)
  if redis.call('GET', key('lease', session)) == token then
    redis.call('DEL', key('lease', session))
  end
end

-- Gives the first run of the queue and renews the lease; if none is left, gives false and releases
-- the lease.
local function next_run(session, token, server, lease_ms)
  local run = first_run(session, server)
  if run then
    redis.call('SET', key('lease', session), token, 'PX', lease_ms)
  else
    release(session, token)
    redis.call('SREM', PREFIX .. ':active', session)
  end
  return run
end

-- Whether a run of a session has not ended. One that has is in the queue until its owner has counted
-- what it used, which may be after its end is told.
local function is_busy(session)
  for _, run in ipairs(redis.call('LRANGE', key('queue', session), 0, -1)) do
    local status = redis.call('HGET', key('run', run), 'status')
    if status == 'queued' or status == 'running' or status == 'input-required' then
      return true
    end
  end
  return false
end
