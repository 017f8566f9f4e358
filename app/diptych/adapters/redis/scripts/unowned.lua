#!lua flags=allow-oom
-- Names sessions that have work and that nobody holds; forgets those without work, and sessions
-- that have expired.
-- ARGV: prefix, how many, retention ms
local LOOKED_THROUGH = 5000
local active, most = PREFIX .. ':active', tonumber(ARGV[2])
local found = {}
for _, session in ipairs(redis.call('SRANDMEMBER', active, LOOKED_THROUGH)) do
  if #found < most and redis.call('EXISTS', key('lease', session)) == 0 then
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
