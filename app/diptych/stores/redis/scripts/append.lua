#!lua
-- Adds the next records of one run, and publishes them. With `allow-oom` for records that end it.
-- ARGV: prefix, run, session, token, first seq, status, updated, is shown ('1' or '0' per record),
--       blob or '', blob ms, first line of the message, record …
local run, session, token, first = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local RECORDS = 12

-- Adds a row at its place; gives how many were removed for it. What stands at or after that place
-- is of others, as `seq` counts all that is ours: with it the stream would take no row any more,
-- from any owner, and the run would never end.
local function add(log, at, row)
  if type(redis.pcall('XADD', log, at .. '-0', 'r', row)) ~= 'table' then
    return 0
  end
  local removed = 0
  repeat
    local strange = redis.call('XRANGE', log, at .. '-0', '+', 'COUNT', 1000)
    for _, each in ipairs(strange) do
      removed = removed + redis.call('XDEL', log, each[1])
    end
  until #strange == 0
  redis.call('XSETID', log, at - 1 .. '-18446744073709551615')
  redis.call('XADD', log, at .. '-0', 'r', row)
  return removed
end

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

local shown, removed, log = 0, 0, key('log', run)
local added = {}
for i = RECORDS, #ARGV do
  local at = first + i - RECORDS
  if at > seq then
    removed = removed + add(log, at, ARGV[i])
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
return { 'ok', removed }
