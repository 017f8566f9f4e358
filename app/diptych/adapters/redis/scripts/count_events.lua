#!lua flags=allow-oom
-- Gives how many sessions there are, and how many events they have; or 'incomplete' and what
-- `indexed` must become.
-- ARGV: prefix, '1' if incomplete lists will do, retention ms
remove_expired_sessions(ARGV[3], 1000)
local sessions, active = redis.call('ZCARD', SESSIONS), redis.call('SMEMBERS', ACTIVE)
local adds_up = sessions == redis.call('HLEN', COUNTS) + #active
if ARGV[2] == '0' and (has_unindexed_opens() or not adds_up) then
  return { 'incomplete', unindexed_opens() }
end
local events = tonumber(redis.call('HGET', LISTS, 'events') or 0)
for _, session in ipairs(active) do
  events = events + tonumber(redis.call('HGET', key('session', session), 'events') or 0)
end
return { 'ok', sessions, events }
