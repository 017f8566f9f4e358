#!lua
-- Opens a run at the end of its session's queue, and claims the session if it has no owner.
-- ARGV: prefix, epoch, run, session, token, created, record, is shown, server, lease ms,
--       longest queue, idempotency key or '', digest of its body, 1 if the session must be idle,
--       the run that must be its newest or '', retention ms, blob ms, ms until its deadline or ''
local epoch, run, session, token, created = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local once = ARGV[12] ~= '' and key('once', ARGV[12])

local function opened(id, is_new)
  local lease = is_new == 1 and redis.call('GET', key('lease', session)) == token
  return { 'ok', id, is_new, lease and 1 or 0, unpack(run_fields(id)) }
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
if ARGV[15] ~= '' and redis.call('ZRANGE', key('runs', session), -1, -1)[1] ~= ARGV[15] then
  return { 'newer' }
end
if ARGV[14] == '1' and is_busy(session) then
  return { 'busy' }
end
if redis.call('LLEN', key('queue', session)) >= tonumber(ARGV[11]) then
  return { 'full' }
end

note_death(session) -- if there is no owner, this request claims the session
local order = redis.call('INCR', PREFIX .. ':order')
redis.call('XADD', key('log', run), '1-0', 'r', ARGV[7])
redis.call(
  'HSET', key('run', run),
  'session', session, 'created', created, 'status', 'queued', 'seq', 1, 'updated', created
)
redis.call('RPUSH', key('queue', session), run)
redis.call('ZADD', key('runs', session), order, run)
redis.call('ZADD', INDEX, order, run)
uncount(session)
if redis.call('HSETNX', key('session', session), 'created', created) == 0 then
  put_off_expiry(session, tonumber(ARGV[16]), ARGV[17], now_ms())
end
redis.call('HSET', key('session', session), 'updated', created)
redis.call('HINCRBY', key('session', session), 'events', ARGV[8])
redis.call('ZADD', SESSIONS, now_ms(), session)
redis.call('SADD', ACTIVE, session)
for _, kind in ipairs({ 'session', 'runs', 'said', 'fence' }) do
  redis.call('PERSIST', key(kind, session)) -- until no run is unfinished; of runs: expiry.lua
end
if ARGV[18] ~= '' then
  redis.call('ZADD', DUE, now_ms() + tonumber(ARGV[18]), run)
end
if once then
  redis.call('HSET', once, 'run', run, 'digest', ARGV[13])
  redis.call('EXPIRE', once, 86400)
end
if redis.call('SET', key('lease', session), token, 'NX', 'PX', ARGV[10]) then
  redis.call('SET', key('fence', session), token)
  first_run(session, ARGV[9])
end
return opened(run, 1)
