#!lua flags=allow-oom
-- Gives sessions that have unfinished runs and no owner. Removes from `active` the sessions without
-- unfinished runs, and from the lists what has expired.
-- ARGV: prefix, how many, retention ms
local MAX_CHECKED = 5000
local max, found = tonumber(ARGV[2]), {}
for _, session in ipairs(redis.call('SRANDMEMBER', ACTIVE, MAX_CHECKED)) do
  if #found < max and redis.call('EXISTS', key('lease', session)) == 0 then
    if redis.call('EXISTS', key('queue', session)) == 1 then
      found[#found + 1] = session
    else
      redis.call('SREM', ACTIVE, session)
    end
  end
end

remove_expired_sessions(tonumber(ARGV[3]), 100)
local after = redis.call('HGET', LISTS, 'swept') or ''
local swept = remove_expired_runs(after, 500)
if swept ~= after then
  redis.call('HSET', LISTS, 'swept', swept)
end
return found
