-- Put after `prelude.lua` before each script that changes or reads the lists of runs and sessions:
--
--   index     every run, by the order in which it was opened
--   ended:X   the runs that ended as X and left their queue, by the ms of their last record
--   counts    the number of events of each session that is in `sessions` and not in `active`
--   lists     events: the sum of `counts`
--             swept: up to which order `index` was last searched for runs that have expired
local INDEX, COUNTS, LISTS = PREFIX .. ':index', PREFIX .. ':counts', PREFIX .. ':lists'
local SESSIONS, ACTIVE = PREFIX .. ':sessions', PREFIX .. ':active'
local ENDS = { 'completed', 'failed', 'aborted', 'max_steps' }

local function list_ended(status)
  return PREFIX .. ':ended:' .. status
end

-- The time of a run's last record in ms, and the run's status.
local function updated_ms(run)
  local fields = redis.call('HMGET', key('run', run), 'status', 'updated', 'created')
  return math.floor(tonumber(fields[2] or fields[3] or 0) * 1000), fields[1]
end

-- Lists a run that has left its queue.
local function add_ended(run)
  local ms, status = updated_ms(run)
  redis.call('ZADD', list_ended(status), ms, run)
end

local function remove_run(run)
  redis.call('ZREM', INDEX, run)
  for _, status in ipairs(ENDS) do
    redis.call('ZREM', list_ended(status), run)
  end
end

local function uncount(session)
  local events = redis.call('HGET', COUNTS, session)
  if events then
    redis.call('HDEL', COUNTS, session)
    redis.call('HINCRBY', LISTS, 'events', 0 - tonumber(events)) -- Redis cannot read '-0'
  end
end

-- Counts the events of a session that has no unfinished runs, so that none can be added.
local function count(session)
  local events = tonumber(redis.call('HGET', key('session', session), 'events') or 0)
  local counted = tonumber(redis.call('HGET', COUNTS, session) or -1)
  if events ~= counted then
    redis.call('HSET', COUNTS, session, events)
    redis.call('HINCRBY', LISTS, 'events', events - math.max(counted, 0))
  end
end

local function remove_expired_sessions(retention_ms, max)
  local before = now_ms() - retention_ms
  local old = redis.call('ZRANGE', SESSIONS, '-inf', before, 'BYSCORE', 'LIMIT', 0, max)
  for _, session in ipairs(old) do
    if redis.call('EXISTS', key('session', session)) == 0 then
      redis.call('ZREM', SESSIONS, session)
      uncount(session)
    end
  end
end

-- Removes the expired among the next `max` runs after an order; gives the order of the last, or ''.
local function remove_expired_runs(after, max)
  local start = after == '' and '-inf' or '(' .. after
  local runs = redis.call('ZRANGE', INDEX, start, '+inf', 'BYSCORE', 'LIMIT', 0, max, 'WITHSCORES')
  for i = 1, #runs, 2 do
    if redis.call('EXISTS', key('log', runs[i])) == 0 then
      remove_run(runs[i])
    end
  end
  return #runs == 2 * max and runs[#runs] or ''
end
