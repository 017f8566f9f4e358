#!lua flags=allow-oom
-- Takes a run that has ended out of the queue, adds its messages to the conversation, and gives the
-- next run.
-- ARGV: prefix, session, token, server, lease ms, run, messages or '', retention ms, blob ms
local session, run = ARGV[2], ARGV[6]
local retention_ms, blob_ms = tonumber(ARGV[8]), ARGV[9]

local refused = refusal(session, ARGV[3])
if refused then
  return { refused }
end
if redis.call('LPOS', key('queue', session), run) then
  local known = redis.call('HMGET', key('run', run), 'status', 'seq')
  if known[1] == 'queued' or known[1] == 'running' or known[1] == 'input-required' then
    return { 'tail', tonumber(known[2]) } -- the run's end was lost: its owner must add it again
  end
  redis.call('LREM', key('queue', session), 1, run)
  redis.call('UNLINK', key('asked', run))
  redis.call('ZREM', DUE, run)
  if ARGV[7] ~= '' then
    redis.call('RPUSH', key('said', session), run .. ' ' .. ARGV[7])
  end
  add_ended(run)
  expire(run, retention_ms, blob_ms, 'NX')
  put_off_expiry(session, retention_ms, blob_ms, now_ms())
  redis.call('ZADD', SESSIONS, now_ms(), session)
end
local following = next_run(session, ARGV[3], ARGV[4], ARGV[5])
if not following then
  count(session)
  for _, kind in ipairs({ 'session', 'runs', 'said', 'fence' }) do
    redis.call('PEXPIRE', key(kind, session), retention_ms)
  end
end
return { 'ok', following }
