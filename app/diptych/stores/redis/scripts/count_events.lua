#!lua flags=allow-oom
-- Gives how many sessions there are, and how many events they have.
-- ARGV: prefix, retention ms
remove_expired_sessions(ARGV[2], 1000)
local sessions, active = redis.call('ZCARD', SESSIONS), redis.call('SMEMBERS', ACTIVE)
local events = tonumber(redis.call('HGET', LISTS, 'events') or 0)
for _, session in ipairs(active) do
  events = events + tonumber(redis.call('HGET', key('session', session), 'events') or 0)
end
return { sessions, events }
