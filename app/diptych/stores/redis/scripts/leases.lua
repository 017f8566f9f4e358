-- The leases of sessions and the queues of their runs; follows `runs.lua`.

-- Claims a session that has unfinished runs and no owner.
function methods.claim(session, token, lease_ms)
  if redis.call('LLEN', key('queue', session)) == 0 then
    redis.call('SREM', ACTIVE, session)
    return 0
  end
  local owner = redis.call('GET', key('lease', session))
  if not owner then
    note_death(session)
    own(session, token, lease_ms)
  end
  return (not owner or owner == token) and 1 or 0
end

-- Returns the first run in the queue: its id, the bytes to load in order to execute it, and how many
-- of its owners have died, including the last one if it is gone and nobody has claimed since.
function methods.queue_head(session)
  local run, size = redis.call('LINDEX', key('queue', session), 0), 0
  if not run then
    return false
  end
  for _, each in ipairs({ key('log', run), key('signals', run), key('messages', session) }) do
    size = size + (redis.call('MEMORY', 'USAGE', each, 'SAMPLES', 0) or 0)
  end
  local deaths = tonumber(redis.call('HGET', key('run', run), 'deaths') or 0)
  return { run, size, deaths + (has_died(session) and 1 or 0) }
end

-- Returns the first run in the queue and renews the lease; if the queue is empty, releases the lease.
function methods.next_run(session, token, lease_ms)
  local refused = refusal(session, token)
  if refused then
    return { refused }
  end
  local run = first_run(session)
  if run then
    redis.call('SET', key('lease', session), token, 'PX', lease_ms)
  else
    if redis.call('GET', key('lease', session)) == token then
      redis.call('DEL', key('lease', session))
    end
    redis.call('SREM', ACTIVE, session)
  end
  return { 'ok', run }
end

-- Removes an ended run from the queue, appends its messages to the conversation, and returns the
-- next run.
function methods.finish_run(session, token, lease_ms, run, said, retention_ms, blob_ms)
  local refused = refusal(session, token)
  if refused then
    return { refused }
  end
  retention_ms = tonumber(retention_ms)
  if redis.call('LPOS', key('queue', session), run) then
    local known = redis.call('HMGET', key('run', run), 'status', 'seq')
    if UNFINISHED[known[1]] then
      return { 'tail', tonumber(known[2]) } -- the run's end was lost: the owner must append it again
    end
    redis.call('LREM', key('queue', session), 1, run)
    redis.call('UNLINK', key('signals', run))
    redis.call('ZREM', DUE, run)
    if said ~= '' then
      redis.call('RPUSH', key('messages', session), run .. ' ' .. said)
    end
    expire(run, retention_ms, blob_ms, 'NX')
    extend_expiry(session, retention_ms, blob_ms)
    redis.call('ZADD', SESSIONS, now_ms(), session)
  end
  local following = methods.next_run(session, token, lease_ms)
  if not following[2] then
    for _, kind in ipairs(SESSION_KEYS) do
      redis.call('PEXPIRE', key(kind, session), retention_ms)
    end
    redis.call('PEXPIRE', key('runs', session), retention_ms + KNOWN_MS) -- for `forget_expired`
  end
  return following
end

-- Renews leases, and returns the indexes of the lost ones. Skips sessions without unfinished runs:
-- their leases were released meanwhile. Also extends the expiry of the other sessions' runs.
function methods.renew(lease_ms, retention_ms, blob_ms, ...)
  local lost, pairs_ = {}, { ... }
  for i = 1, #pairs_, 2 do
    local session, token = pairs_[i], pairs_[i + 1]
    if refusal(session, token) then
      lost[#lost + 1] = (i - 1) / 2
    elseif redis.call('EXISTS', key('queue', session)) == 1 then
      redis.call('SET', key('lease', session), token, 'PX', lease_ms)
      extend_expiry(session, tonumber(retention_ms), blob_ms)
    end
  end
  return lost
end

-- Releases a session. The fence gets a token that nobody has, so that neither a late write nor a
-- late renewal can block other owners. `message` is published to other processes, unless ''.
function methods.release(session, token, message)
  if not refusal(session, token) then
    if redis.call('GET', key('lease', session)) == token then
      redis.call('DEL', key('lease', session))
    end
    redis.call('SET', key('fence', session), '-' .. token, 'KEEPTTL')
    if message ~= '' then
      redis.call('PUBLISH', PREFIX .. ':control', message)
    end
  end
end

-- Returns sessions with unfinished runs and without an owner. Also purges expired sessions.
function methods.unowned_sessions(max, retention_ms)
  local found = {}
  for _, session in ipairs(redis.call('SRANDMEMBER', ACTIVE, 5000)) do
    if #found < tonumber(max) and redis.call('EXISTS', key('lease', session)) == 0 then
      if redis.call('EXISTS', key('queue', session)) == 1 then
        found[#found + 1] = session
      else
        redis.call('SREM', ACTIVE, session)
      end
    end
  end
  forget_expired(tonumber(retention_ms))
  return found
end

-- Returns queued runs whose deadline has passed, and each of them again later until it has started or
-- ended, in case the process that got it has died.
function methods.overdue_runs(max, again_ms)
  local now, found = now_ms(), {}
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, max)) do
    if redis.call('HGET', key('run', run), 'status') == 'queued' then
      redis.call('ZADD', DUE, now + again_ms, run)
      found[#found + 1] = run
    else
      redis.call('ZREM', DUE, run)
    end
  end
  return found
end

-- Whether a run was last executed with another server, and has no new records since.
function methods.may_be_truncated(run)
  local fields = redis.call('HMGET', key('run', run), 'seq', 'server', 'lost')
  if not fields[1] then
    return nil
  end
  local has_moved = fields[2] and fields[2] ~= server_id()
  return (has_moved or fields[3] == fields[1]) and 1 or 0
end
