#!lua
-- Adds the next records of one run, and publishes them. With `allow-oom` for records that end it.
-- ARGV: prefix, run, session, token, first seq, status, updated, is shown ('1' or '0' per record),
--       blob or '', blob ms, first line of the message, record …
local run, session, token, first = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local RECORDS = 12

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

local shown, log = 0, key('log', run)
local added = {}
for i = RECORDS, #ARGV do
  local at = first + i - RECORDS
  if at > seq then
    redis.call('XADD', log, at .. '-0', 'r', ARGV[i])
    shown = shown + (string.byte(ARGV[8], i - RECORDS + 1) == 49 and 1 or 0)
    added[#added + 1] = ARGV[i]
  else
    local there = redis.call('XRANGE', log, at .. '-0', at .. '-0')
    if not there[1] or there[1][2][2] ~= ARGV[i] then
      return { 'tail', seq }
    end
  end
end
if #added == 0 then
  return { 'ok' }
end

redis.call('HSET', key('run', run), 'seq', seq + #added, 'status', ARGV[6], 'updated', ARGV[7])
redis.call('HSET', key('session', session), 'updated', ARGV[7])
if shown > 0 then
  redis.call('HINCRBY', key('session', session), 'events', shown)
end
if ARGV[9] ~= '' then
  redis.call('HSET', key('run', run), 'blob', ARGV[9])
  redis.call('PEXPIRE', key('blob', ARGV[9]), ARGV[10])
end
redis.call('PUBLISH', key('told', run), ARGV[11] .. '\n' .. table.concat(added, '\n'))
return { 'ok' }
