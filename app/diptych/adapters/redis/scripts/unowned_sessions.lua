#!lua flags=allow-oom
-- Gives sessions that have unfinished runs and no owner. Removes from `active` the sessions without
-- unfinished runs, from the lists what has expired, and from some of the counts what is not listed.
-- ARGV: prefix, how many, retention ms
local MAX_CHECKED, MAX_COUNTS_CHECKED = 5000, 50
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
-- A replica of an earlier version removes sessions and leaves their counts. If it also finishes runs
-- of as many other sessions, the sizes of the lists add up all the same.
for _, session in ipairs(redis.call('HRANDFIELD', COUNTS, MAX_COUNTS_CHECKED)) do
  if not redis.call('ZSCORE', SESSIONS, session) then
    uncount(session)
  end
end
local after = redis.call('HGET', LISTS, 'swept') or ''
local swept = remove_expired_runs(after, 500)
if swept ~= after then
  redis.call('HSET', LISTS, 'swept', swept)
end
return found
