#!lua flags=allow-oom
-- Gives sessions that have unfinished runs and no owner. Removes from `active` the sessions without
-- unfinished runs, and from `sessions` those that have expired.
-- ARGV: prefix, how many, retention ms
local MAX_CHECKED = 5000
local active, max = PREFIX .. ':active', tonumber(ARGV[2])
local found = {}
for _, session in ipairs(redis.call('SRANDMEMBER', active, MAX_CHECKED)) do
  if #found < max and redis.call('EXISTS', key('lease', session)) == 0 then
    if redis.call('EXISTS', key('queue', session)) == 1 then
      found[#found + 1] = session
    else
      redis.call('SREM', active, session)
    end
  end
end

local sessions, before = PREFIX .. ':sessions', now_ms() - tonumber(ARGV[3])
for _, session in ipairs(redis.call('ZRANGEBYSCORE', sessions, '-inf', before, 'LIMIT', 0, 100)) do
  if redis.call('EXISTS', key('session', session)) == 0 then
    redis.call('ZREM', sessions, session)
  end
end
return found
