-- Put after `prelude.lua` before the scripts that say when runs expire.
--
-- All runs of a session expire together, `retention` after its last run has left the queue; while a
-- run is in it, they do not. That is put off at an end, when a run is opened and when the lease is
-- renewed: each time for all runs that have ended it would cost more the longer the session is, so
-- it is done once per tenth of the retention (`refreshed` of the session says when).
local KNOWN_MS = 86400000 -- for which an expired run is known to have existed

-- Sets when a run expires: 'NX' for the first time, 'XX' to put it off. An unfinished run has no
-- such time, and 'XX' gives it none.
local function expire(id, retention_ms, blob_ms, condition)
  redis.call('PEXPIRE', key('log', id), retention_ms, condition)
  redis.call('PEXPIRE', key('run', id), retention_ms + KNOWN_MS, condition)
  local blob = redis.call('HGET', key('run', id), 'blob')
  if blob then
    redis.call('PEXPIRE', key('blob', blob), blob_ms)
  end
end

-- Puts off when the runs of a session expire, if it is time to. Gives how many runs it looked at.
local function put_off_expiry(session, retention_ms, blob_ms, now)
  local refreshed = tonumber(redis.call('HGET', key('session', session), 'refreshed') or 0)
  if now - refreshed < retention_ms / 11 then
    return 0
  end
  redis.call('HSET', key('session', session), 'refreshed', now)
  local runs = redis.call('ZRANGE', key('runs', session), 0, -1)
  for _, id in ipairs(runs) do
    expire(id, retention_ms, blob_ms, 'XX')
  end
  return #runs
end
