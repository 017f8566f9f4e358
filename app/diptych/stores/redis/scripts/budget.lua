#!lua
-- Budgets that runs share: one step of `ports.budgets.Ledger`, on all accounts.
-- ARGV: prefix, what (the method; 'share' is reserve_share, 'end' end_run, 'read' used), entry
--       (renew: a JSON array of them), run, ms for which a reservation lasts, ms for which a settled
--       entry is known, ms for which a run that has ended is, parts of a share, then for each
--       account: name, ms for which it is kept, 6 limits ('' for none), 6 amounts (of a share ''
--       for one that the run does not limit).
-- An account is a hash: u1 to u6 is what is used, c1 to c6 what is claimed (used or reserved),
-- r:<entry> a reservation or 'settled', r:<run>/ended of a run that has ended, t1:<run> to
-- t6:<run> what is settled of the run, x is for sums. And a sorted set of the entries, by when they
-- are forgotten. Numbers are strings: a double has no room for money.
-- Gives outcome, place of the account and of the limit (from 1; 0 if neither), what is used of each
-- account, and the amounts of a share.
local what, entry, run = ARGV[2], ARGV[3], ARGV[4]
local reserved_ms, known_ms, ended_ms, N = ARGV[5], ARGV[6], ARGV[7], 6
local MOST = '9223372036854775807'  -- that 64 bits hold
local parts, ended = tonumber(ARGV[8]), run .. '/ended'
local now = now_ms()

local function is_less(one, other)
  if string.sub(one, 1, 1) == '-' then
    return true
  end
  return #one < #other or (#one == #other and one < other)
end

local accounts = {}
local at = 9
while at < #ARGV do
  local account = {
    name = key('budget', ARGV[at]), due = key('budgetdue', ARGV[at]), ms = ARGV[at + 1],
    limits = {}, amounts = {},
  }
  for i = 1, N do
    account.limits[i], account.amounts[i] = ARGV[at + 1 + i], ARGV[at + 1 + N + i]
  end
  accounts[#accounts + 1] = account
  at = at + 2 + 2 * N
end

-- Adds to a field; what is more than 64 bits hold stays at the most, so that it counts as used up.
local function add(account, field, i, amount)
  if amount and amount ~= '' and amount ~= '0' then
    local sum = redis.pcall('HINCRBY', account.name, field .. i, amount)
    if type(sum) == 'table' then
      redis.call('HSET', account.name, field .. i, MOST)
    end
  end
end

local function claim(account, amounts)
  for i = 1, N do
    add(account, 'c', i, amounts[i])
  end
end

-- Gives the amounts of a reservation; none of what is settled.
local function amounts_of(state)
  local found = {}
  for amount in string.gmatch(state == 'settled' and '' or state, '%S+') do
    found[#found + 1] = amount
  end
  return found
end

-- Takes a reservation off what is claimed, if the entry has one, and gives the state of the entry.
-- The caller replaces or deletes that.
local function unclaim(account, name)
  local state = redis.call('HGET', account.name, 'r:' .. name)
  for i, amount in ipairs(amounts_of(state or '')) do
    add(account, 'c', i, amount == '0' and '0' or '-' .. amount)
  end
  return state
end

local function set_entry(account, name, state, ms)
  redis.call('HSET', account.name, 'r:' .. name, state)
  redis.call('ZADD', account.due, now + ms, name)
end

local function renew(name)
  for _, account in ipairs(accounts) do
    redis.call('ZADD', account.due, 'XX', 'GT', now + reserved_ms, name)
  end
end

local function sums(account, field)
  local fields = {}
  for i = 1, N do
    fields[i] = field .. i
  end
  local found = redis.call('HMGET', account.name, unpack(fields))
  for i = 1, N do
    found[i] = found[i] or '0'
  end
  return found
end

-- Gives one of `parts` of what is left of a limit, at least 1. A double lacks digits for large sums
-- of money: the whole is found by HINCRBY, a part of it is rounded down.
local function part_of_left(account, i, parts)
  local taken, limit = sums(account, 'c')[i], account.limits[i]
  redis.call('HSET', account.name, 'x', is_less(MOST, limit) and MOST or limit)
  redis.call('HINCRBY', account.name, 'x', taken == '0' and '0' or '-' .. taken)
  local left = redis.call('HGET', account.name, 'x')
  redis.call('HDEL', account.name, 'x')
  if parts > 1 then
    local part = tonumber(left) / parts
    left = string.format('%.0f', part < 1e15 and math.ceil(part) or math.floor(part * (1 - 1e-15)))
  end
  return is_less(left, '1') and '1' or left
end

local function of_all(field)
  local all = {}
  for n, account in ipairs(accounts) do
    all[n] = sums(account, field)
  end
  return all
end

local function used()
  return of_all('u')
end

local function share()
  local amounts = {}
  for i = 1, N do
    local own = accounts[1].amounts[i]
    amounts[i] = own
    for _, account in ipairs(i < N and accounts or {}) do
      if account.limits[i] ~= '' then
        local most = part_of_left(account, i, own == '' and parts or 1)
        if amounts[i] == '' or is_less(most, amounts[i]) then
          amounts[i] = most
        end
      end
    end
    amounts[i] = amounts[i] == '' and '0' or amounts[i]
  end
  return amounts
end

-- Finds the first limit of which nothing is left, if the amount has something of it.
local function first_gone(field)
  for n, account in ipairs(accounts) do
    local taken = sums(account, field)
    for i = 1, N do
      local is_wanted = i == N or account.amounts[i] ~= '0'
      if account.limits[i] ~= '' and is_wanted and not is_less(taken[i], account.limits[i]) then
        return n, i
      end
    end
  end
end

-- Says whether all of the run was counted before.
local function has_ended(account)
  return redis.call('HGET', account.name, 'r:' .. ended)
end

-- What comes after the end of a run is of a request by itself: it counts, and is no part of its record.
local function settle()
  for _, account in ipairs(accounts) do
    if unclaim(account, entry) ~= 'settled' then
      set_entry(account, entry, 'settled', known_ms)
      local is_recorded = run ~= '' and not has_ended(account)
      for i = 1, N do
        add(account, 'u', i, account.amounts[i])
        add(account, 'c', i, account.amounts[i])
        if is_recorded then
          add(account, 't' .. i .. ':' .. run, '', account.amounts[i])
        end
      end
    end
  end
end

for _, account in ipairs(accounts) do
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', account.due, '-inf', now, 'LIMIT', 0, 100)) do
    unclaim(account, name)
    redis.call('HDEL', account.name, 'r:' .. name)
    redis.call('ZREM', account.due, name)
  end
end

local amounts
if what == 'reserve' or what == 'share' or what == 'spend' then
  local states, count, settled = {}, 0, false
  for n, account in ipairs(accounts) do
    states[n] = redis.call('HGET', account.name, 'r:' .. entry)
    count = count + (states[n] and 1 or 0)
    settled = settled or states[n] == 'settled'
  end
  if settled then
    return { 'ok', 0, 0, used(), what == 'share' and share() or false }
  elseif count == #accounts then
    renew(entry)
    return { 'ok', 0, 0, used(), what == 'share' and amounts_of(states[1]) or false }
  end
  -- Of some accounts a former owner has reserved, before midnight or under another manifest.
  for n, account in ipairs(accounts) do
    if states[n] then
      unclaim(account, entry)
    end
  end
  local busy, limit = first_gone('c')
  if busy then
    for n, account in ipairs(accounts) do
      claim(account, amounts_of(states[n] or ''))
    end
    local gone, i = first_gone('u')
    return { gone and 'gone' or 'busy', gone or busy, i or limit, used(), false }
  end
  amounts = what == 'share' and share() or accounts[1].amounts
  for _, account in ipairs(what ~= 'spend' and accounts or {}) do
    set_entry(account, entry, table.concat(amounts, ' '), reserved_ms)
    claim(account, amounts)
  end
  if what == 'spend' then
    settle()
  end
elseif what == 'renew' then
  for _, name in ipairs(cjson.decode(entry)) do
    renew(name)
  end
elseif what == 'settle' then
  settle()
elseif what == 'count_record' then
  for _, account in ipairs(accounts) do
    for i = 1, has_ended(account) and 0 or N do
      local field = 't' .. i .. ':' .. run
      local settled = redis.call('HGET', account.name, field) or '0'
      if is_less(settled, account.amounts[i]) then
        redis.call('HSET', account.name, field, account.amounts[i])
        for _, sum in ipairs({ 'u', 'c' }) do
          add(account, sum, i, account.amounts[i])
          add(account, sum, i, settled == '0' and '0' or '-' .. settled)
        end
      end
    end
  end
elseif what == 'end' then
  local fields = {}
  for i = 1, N do
    fields[i] = 't' .. i .. ':' .. run
  end
  for _, account in ipairs(accounts) do
    redis.call('HDEL', account.name, unpack(fields))
    set_entry(account, ended, 'settled', ended_ms)
  end
end
if what ~= 'read' then
  for _, account in ipairs(accounts) do
    redis.call('PEXPIRE', account.name, account.ms)
    redis.call('PEXPIRE', account.due, account.ms)
  end
end
return { 'ok', 0, 0, used(), what == 'share' and amounts or false }
