-- Runs and their sessions: open, append, signal, list, delete. The keys are in `redis/__init__.py`.
local SESSIONS, ACTIVE, INDEX = PREFIX .. ':sessions', PREFIX .. ':active', PREFIX .. ':index'
local DUE = PREFIX .. ':due'
local UNFINISHED = { queued = true, running = true, ['input-required'] = true }
local STATUSES = { 'queued', 'running', 'input-required', 'completed', 'failed', 'aborted', 'max_steps' }
local SESSION_KEYS = { 'session', 'runs', 'messages', 'fence' }
local KNOWN_MS = 86400000 -- how long to remember that an expired run existed

-- Changes with each start of the server, and on failover.
local function server_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- The fields of `ports.entries.RunEntry`; nothing for an unknown run.
local function entry(run, server)
  local fields = redis.call(
    'HMGET', key('run', run), 'session', 'created', 'status', 'seq', 'updated', 'server', 'lost'
  )
  local has_moved = fields[6] and fields[6] ~= server
  local found = { run, fields[1], fields[2], fields[3], fields[4], fields[5] }
  found[7] = (has_moved or fields[7]) and 1 or 0
  return fields[1] and found
end

local function update(run, status, seq, updated)
  local before = redis.call('HGET', key('run', run), 'status')
  if before and before ~= status then
    redis.call('ZREM', key('status', before), run)
  end
  redis.call('HSET', key('run', run), 'status', status, 'seq', seq, 'updated', updated)
  redis.call('ZADD', key('status', status), math.floor(tonumber(updated) * 1000), run)
end

local function unlist(run)
  redis.call('ZREM', INDEX, run)
  for _, status in ipairs(STATUSES) do
    redis.call('ZREM', key('status', status), run)
  end
end

-- Returns why a token may not write: 'lost' if the session does not exist, 'stale' if it has another
-- owner. Checks the fence rather than the lease, since it still exists when the lease has expired.
local function refusal(session, token)
  local fence = redis.call('GET', key('fence', session))
  if not fence then
    return 'lost'
  end
  return fence ~= token and 'stale' or nil
end

-- Returns the first run in the queue, and stores that this server is used to execute it. If it was
-- another server before, the newest records may be missing: `lost` is the last seq that is left.
local function first_run(session)
  local run, server = redis.call('LINDEX', key('queue', session), 0), server_id()
  local known = run and redis.call('HMGET', key('run', run), 'server', 'seq')
  if run and known[1] ~= server then
    redis.call('HSET', key('run', run), 'server', server)
    if known[1] then
      redis.call('HSET', key('run', run), 'lost', known[2] or 0)
    end
  end
  return run
end

-- Whether the last owner of a session is gone without releasing it: it died or lost the store.
local function has_died(session)
  local fence = redis.call('GET', key('fence', session))
  return fence and string.sub(fence, 1, 1) ~= '-' and redis.call('EXISTS', key('lease', session)) == 0
end

-- Counts the death of an owner against the first run in the queue.
local function note_death(session)
  local run = has_died(session) and redis.call('LINDEX', key('queue', session), 0)
  if run then
    redis.call('HINCRBY', key('run', run), 'deaths', 1)
  end
end

local function own(session, token, lease_ms)
  redis.call('SET', key('lease', session), token, 'PX', lease_ms)
  redis.call('SET', key('fence', session), token)
  first_run(session)
end

-- Whether a session has an unfinished run. Ended runs stay queued until their use is counted.
local function is_busy(session)
  for _, run in ipairs(redis.call('LRANGE', key('queue', session), 0, -1)) do
    if UNFINISHED[redis.call('HGET', key('run', run), 'status')] then
      return true
    end
  end
  return false
end

-- Sets the expiry of a run: 'NX' for the first time, 'XX' to extend it. Unfinished runs have none,
-- and 'XX' does not change that.
local function expire(run, retention_ms, blob_ms, condition)
  redis.call('PEXPIRE', key('log', run), retention_ms, condition)
  redis.call('PEXPIRE', key('pushes', run), retention_ms, condition)
  redis.call('PEXPIRE', key('run', run), retention_ms + KNOWN_MS, condition)
  local blob = redis.call('HGET', key('run', run), 'blob')
  if blob then
    redis.call('PEXPIRE', key('blob', blob), blob_ms)
  end
end

-- Extends the expiry of a session's runs, which expire together, `retention` after the last one. The
-- cost grows with the session, so this is done only once per tenth of the retention.
local function extend_expiry(session, retention_ms, blob_ms)
  local now = now_ms()
  local refreshed = tonumber(redis.call('HGET', key('session', session), 'refreshed') or 0)
  if now - refreshed >= retention_ms / 11 then
    redis.call('HSET', key('session', session), 'refreshed', now)
    for _, run in ipairs(redis.call('ZRANGE', key('runs', session), 0, -1)) do
      expire(run, retention_ms, blob_ms, 'XX')
    end
  end
end

-- Removes an expired session and its runs from the lists.
local function forget(session)
  for _, run in ipairs(redis.call('ZRANGE', key('runs', session), 0, -1)) do
    unlist(run)
  end
  redis.call('UNLINK', key('runs', session))
  redis.call('ZREM', SESSIONS, session)
end

function methods.open(
  epoch, run, session, token, created, record, shown, lease_ms, max_queue, once, digest, if_idle,
  if_newest, retention_ms, blob_ms, due_ms
)
  local function opened(id, is_new)
    local is_owner = is_new == 1 and redis.call('GET', key('lease', session)) == token
    return { 'ok', is_new, is_owner and 1 or 0, entry(id, server_id()) }
  end

  if redis.call('GET', PREFIX .. ':epoch') ~= epoch then
    return { 'epoch' }
  end
  if redis.call('EXISTS', key('run', run)) == 1 then
    return opened(run, 1)
  end
  local earlier = once ~= '' and redis.call('HMGET', key('once', once), 'run', 'digest')
  if earlier and earlier[1] and redis.call('EXISTS', key('run', earlier[1])) == 1 then
    return earlier[2] == digest and opened(earlier[1], 0) or { 'other' }
  end
  if redis.call('EXISTS', key('session', session)) == 0 then
    forget(session)
  end
  if if_newest ~= '' and redis.call('ZRANGE', key('runs', session), -1, -1)[1] ~= if_newest then
    return { 'newer' }
  end
  if if_idle == '1' and is_busy(session) then
    return { 'busy' }
  end
  if redis.call('LLEN', key('queue', session)) >= tonumber(max_queue) then
    return { 'full' }
  end

  note_death(session) -- if there is no owner, this request claims the session
  local order = redis.call('INCR', PREFIX .. ':order')
  redis.call('XADD', key('log', run), '1-0', 'r', record)
  redis.call('HSET', key('run', run), 'session', session, 'created', created)
  update(run, 'queued', 1, created)
  redis.call('RPUSH', key('queue', session), run)
  redis.call('ZADD', key('runs', session), order, run)
  redis.call('ZADD', INDEX, order, run)
  if redis.call('HSETNX', key('session', session), 'created', created) == 0 then
    extend_expiry(session, tonumber(retention_ms), blob_ms)
  end
  redis.call('HSET', key('session', session), 'updated', created)
  redis.call('HINCRBY', key('session', session), 'events', shown)
  redis.call('ZADD', SESSIONS, now_ms(), session)
  redis.call('SADD', ACTIVE, session)
  for _, kind in ipairs(SESSION_KEYS) do
    redis.call('PERSIST', key(kind, session)) -- until all of its runs have ended
  end
  if due_ms ~= '' then
    redis.call('ZADD', DUE, now_ms() + due_ms, run)
  end
  if once ~= '' then
    redis.call('HSET', key('once', once), 'run', run, 'digest', digest)
    redis.call('EXPIRE', key('once', once), 86400)
  end
  if redis.call('EXISTS', key('lease', session)) == 0 then
    own(session, token, lease_ms)
  end
  return opened(run, 1)
end

-- Appends the next records of one run, and publishes them. `shown` has '1' or '0' for each record.
function methods.append(run, session, token, first, status, updated, shown, blob, blob_ms, head, ...)
  local records, added, events = { ... }, {}, 0
  first = tonumber(first)
  local refused = refusal(session, token)
  if refused then
    return { refused }
  end
  local seq = tonumber(redis.call('HGET', key('run', run), 'seq'))
  if not seq then
    return { 'lost' }
  end
  if first > seq + 1 then
    return { 'tail', seq }
  end
  for i, record in ipairs(records) do
    local id = first + i - 1 .. '-0'
    if first + i - 1 > seq then
      redis.call('XADD', key('log', run), id, 'r', record)
      events = events + (string.sub(shown, i, i) == '1' and 1 or 0)
      added[#added + 1] = record
    else
      local there = redis.call('XRANGE', key('log', run), id, id)
      if not there[1] or there[1][2][2] ~= record then
        return { 'tail', seq }
      end
    end
  end
  if #added > 0 then
    update(run, status, seq + #added, updated)
    redis.call('HSET', key('session', session), 'updated', updated)
    redis.call('HINCRBY', key('session', session), 'events', events)
    if blob ~= '' then
      redis.call('HSET', key('run', run), 'blob', blob)
      redis.call('PEXPIRE', key('blob', blob), blob_ms)
    end
    redis.call('PUBLISH', key('updates', run), head .. '\n' .. table.concat(added, '\n'))
  end
  return { 'ok' }
end

-- Stores a signal for its run, once, and publishes it. Returns 0 for an unknown run, 2 if the run has
-- too many signals, else 1.
function methods.signal(run, signal, message, max)
  local status, signals = redis.call('HGET', key('run', run), 'status'), key('signals', run)
  if not status then
    return 0
  end
  if UNFINISHED[status] then
    if not redis.call('LPOS', signals, signal) then
      if max ~= '' and redis.call('LLEN', signals) >= tonumber(max) then
        return 2
      end
      redis.call('RPUSH', signals, signal)
    end
    redis.call('PUBLISH', PREFIX .. ':control', message)
  end
  return 1
end

-- Returns a run's entry, or 'expired' if its log is gone.
function methods.entry(run)
  local found = entry(run, server_id())
  return found and redis.call('EXISTS', key('log', run)) == 0 and 'expired' or found
end

-- Lists runs of a session, or all runs, newest first, after the run `before` or the order `after`
-- (either may be ''). Scans about 1,000 runs, and returns the order of the last one, or '' at the end.
function methods.list(before, after, count, status, session)
  local list, server, found, seen = session and key('runs', session) or INDEX, server_id(), {}, 0
  count = tonumber(count)
  if after == '' and before ~= '' then
    after = redis.call('ZSCORE', list, before)
    if not after then
      return { 'unknown' }
    end
  end
  local from = after ~= '' and '(' .. after or '+inf'
  repeat
    local runs =
      redis.call('ZRANGE', list, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 100, 'WITHSCORES')
    for i = 1, #runs, 2 do
      if #found == count then
        break
      end
      from, seen = '(' .. runs[i + 1], seen + 1
      local each = entry(runs[i], server)
      if not each or redis.call('EXISTS', key('log', runs[i])) == 0 then
        unlist(runs[i])
      elseif status == '' or each[4] == status then
        found[#found + 1] = each
      end
    end
    if #runs < 200 and #found < count then
      return { 'ok', '', found }
    end
  until #found == count or seen >= 1000
  return { 'ok', string.sub(from, 2), found }
end

-- Lists runs, most recently updated first, after the position of ms and run. Returns the total number
-- of runs, the number of expired ones on the page, and the rest of the page.
function methods.updated(since, before_ms, before_run, max, ...)
  local page, total, server, found, expired = {}, 0, server_id(), {}, 0
  max = tonumber(max)
  for _, status in ipairs({ ... }) do
    local list, below = key('status', status), before_ms ~= '' and '(' .. before_ms or '+inf'
    total = total + redis.call('ZCOUNT', list, since, '+inf')
    local runs =
      redis.call('ZRANGE', list, below, since, 'BYSCORE', 'REV', 'LIMIT', 0, max, 'WITHSCORES')
    for i = 1, #runs, 2 do
      page[#page + 1] = { tonumber(runs[i + 1]), runs[i] }
    end
    local same = before_ms == '' and {} or redis.call('ZRANGE', list, before_ms, before_ms, 'BYSCORE')
    for _, run in ipairs(same) do
      if run < before_run then
        page[#page + 1] = { tonumber(before_ms), run }
      end
    end
  end
  table.sort(page, function(one, other)
    return one[1] > other[1] or (one[1] == other[1] and one[2] > other[2])
  end)
  for i = 1, math.min(max, #page) do
    local run = page[i][2]
    if redis.call('EXISTS', key('log', run)) == 1 then
      found[#found + 1] = entry(run, server)
    else
      unlist(run)
      expired = expired + 1
    end
  end
  return { total, expired, found }
end

-- Returns for each session: id, number of runs, number of events, created, updated.
function methods.sessions(...)
  local found = {}
  for _, session in ipairs({ ... }) do
    local fields = redis.call('HMGET', key('session', session), 'events', 'created', 'updated')
    if fields[2] then
      local runs = redis.call('ZCARD', key('runs', session))
      found[#found + 1] = { session, runs, fields[1] or 0, fields[2], fields[3] }
    end
  end
  return found
end

local function forget_expired(retention_ms)
  local before = now_ms() - retention_ms
  for _, session in
    ipairs(redis.call('ZRANGE', SESSIONS, '-inf', before, 'BYSCORE', 'LIMIT', 0, 1000))
  do
    if redis.call('EXISTS', key('session', session)) == 0 then
      forget(session)
    end
  end
end

function methods.count_sessions(retention_ms)
  forget_expired(retention_ms)
  return redis.call('ZCARD', SESSIONS)
end

-- Deletes a session and its runs, or only one run with its messages; deleting the last run deletes
-- the session. `shown` is the number of the run's shown events. Refuses with 'busy' if a run is
-- unfinished, and with 'ending' while the owner of an ended run counts its use.
function methods.delete(session, run, shown)
  local queue = key('queue', session)
  if redis.call('EXISTS', run and key('run', run) or key('session', session)) == 0 then
    return 'unknown'
  end
  if run and redis.call('LPOS', queue, run) or not run and redis.call('EXISTS', queue) == 1 then
    return is_busy(session) and 'busy' or 'ending'
  end
  for _, each in ipairs(run and { run } or redis.call('ZRANGE', key('runs', session), 0, -1)) do
    redis.call('UNLINK', key('log', each), key('run', each), key('pushes', each))
    redis.call('ZREM', key('runs', session), each)
    unlist(each)
  end
  if redis.call('EXISTS', key('runs', session)) == 1 then
    for _, row in ipairs(redis.call('LRANGE', key('messages', session), 0, -1)) do
      if string.sub(row, 1, #run + 1) == run .. ' ' then
        redis.call('LREM', key('messages', session), 1, row)
      end
    end
    redis.call('HINCRBY', key('session', session), 'events', 0 - tonumber(shown))
    return 'deleted'
  end
  for _, kind in ipairs({ 'session', 'messages', 'fence', 'lease' }) do
    redis.call('UNLINK', key(kind, session))
  end
  redis.call('ZREM', SESSIONS, session)
  redis.call('SREM', ACTIVE, session)
  return 'deleted'
end
